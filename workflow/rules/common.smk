# What every rule needs: the checked configuration, the run's lock, and the names of records and modules.
import functools
import hashlib
import json
import os
import shlex

from kernelproof import config as configuration
from kernelproof import environment, fingerprints, own_modules, repository, workflow as support
from kernelproof.errors import KernelproofError

KERNELPROOF = f"{shlex.quote(sys.executable)} -P -m kernelproof"
RESOLVED = Path("results/config.json")

try:
    # Snakemake's own `config` has no line numbers, so the file is read by kernelproof, which reports every fault at once.
    if workflow.is_main_process and support.will_run(sys.argv):
        LOCK = environment.only_one(environment.RUN_LOCK, "at work")
        LOCK.__enter__()  # held, by an open file, until this process ends
    CONFIG = configuration.load(
        next(iter(workflow.config_settings.configfiles), Path("config.yaml")),
        workflow.config_settings.config,
    )
    configuration.save(CONFIG, RESOLVED)
except KernelproofError as error:
    print(f"kernelproof: {error}", file=sys.stderr, flush=True)
    os._exit(2)

support.compare_plain_parameters()
support.limit_claims(workflow)
if workflow.is_main_process:  # once: what changes while the run is at work gives it no other name
    repository.begin_run(Path())
STATE = repository.of_run(Path())
REPORTS = Path("reports") / repository.folder_name(STATE)
MACHINE = support.machine_fingerprint(CONFIG)
DRIVER = support.has_driver()

# Stages end with this process, and tell the progress display what they do.
os.environ["KERNELPROOF_RUN_PID"] = str(os.getpid())
os.environ.setdefault("KERNELPROOF_EVENTS", os.path.abspath("results/run/events.jsonl"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(workflow.basedir, "src")), os.environ.get("PYTHONPATH")])
)
Path("results/run").mkdir(parents=True, exist_ok=True)

if workflow.is_main_process and support.will_run(sys.argv):
    support.drop_stale_records(CONFIG, REPORTS)
support.drop_orphaned_receipt(REPORTS)


def settings(stage, subject):
    """A hash of the settings that a record depends on; a change makes it, and what follows from it, again."""
    return hashlib.sha256(json.dumps(fingerprints.of(CONFIG, stage, subject), sort_keys=True).encode()).hexdigest()


def record(stage, variant):
    return str(CONFIG.record(stage, variant.operator, variant.name))


def modules(stage, operator=None):
    """What the Python files of a stage say, its imports followed; Snakemake tracks none of them.

    A parameter and no input: Snakemake would look at forty files for each of a hundred jobs.
    """
    return support.module_digest(stage, CONFIG.operator(operator).module if operator else None)


@functools.cache
def own_module(operator):
    """The Python files of an operator of one's own, as inputs: a record that was made by hand grows old by them too."""
    return own_modules.files_of(CONFIG.operator(operator).module, Path())


BUILT = [variant for variant in CONFIG.variants()]
PROFILED = [variant for operator in CONFIG.operators.values() for variant in operator.profiled()]
BENCHED = sorted({(variant.operator, variant.device) for variant in BUILT})
RECORDS = [
    "results/capture/capture.json",
    *(record(stage, variant) for stage in ("build", "test") for variant in BUILT),
    *(f"results/bench/{operator}-{device}.json" for operator, device in BENCHED),
    *(f"results/bench/ceilings/{device}.json" for device in sorted({device for _, device in BENCHED})),
    *(record("profile", variant) for variant in PROFILED),
]
