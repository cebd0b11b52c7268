# kernelproof's workflow: the configuration, one rule file a stage in the order they run, and the target.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir, "src")))


include: "workflow/rules/common.smk"
include: "workflow/rules/capture.smk"
include: "workflow/rules/build.smk"
include: "workflow/rules/test.smk"
include: "workflow/rules/bench.smk"
include: "workflow/rules/profile.smk"
include: "workflow/rules/manifest.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/bundle.smk"


onstart:
    support.lift_job_rate(workflow)
    support.announce(CONFIG, driver=DRIVER)


rule report:
    default_target: True
    input:
        page=REPORTS / "report.html",
        summary=REPORTS / "summary.md",
        manifest=REPORTS / "manifest.yaml",
        receipt=REPORTS / "bundle.json",
        records=RECORDS,  # one that was removed is made again, and with it all that follows from it
