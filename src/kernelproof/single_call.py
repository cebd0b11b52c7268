"""One call of one variant, as a profiler wants it: `kernelproof bench --once`.

The call that counts runs between cuProfilerStart and cuProfilerStop, and is the second: the first sets everything up.

A profiler starts such a process for each variant, so it must start fast. Whoever starts the profiler can make the
call's inputs meanwhile (`lay_out`); then the process takes them from their folder, and loads no torch where the variant
needs none. `python -m kernelproof.single_call '{...}'` makes them in a process of its own, for one that must not load
torch either (`lay_out_beside`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelproof import builds, memory, nsight, processes
from kernelproof.cases import usual_family
from kernelproof.config import Config, OperatorConfig, VariantConfig, among, load, plain, stated
from kernelproof.errors import BenchError, KernelproofError, ToolError, blamed, describe_exit
from kernelproof.records import BuildRecord, Case, OptionValue, atomic_write, read

LAID_OUT = "call.json"  # the last file to appear in a folder of inputs
WAIT_S, LOOK_EVERY_S = 120.0, 0.005  # for it: importing torch from a cold network disk takes a minute


@dataclass(frozen=True)
class OneCall:
    """What was done: the time by the host's clock, and what the case costs by the operator's model."""

    variant: str  # operator/variant
    case: str
    elapsed_ms: float
    flops: float
    bytes_read: float
    bytes_written: float

    def __str__(self) -> str:
        return f"{self.variant} {self.case}: one call, {self.elapsed_ms:.3f} ms by the host's clock (no benchmark)"


@dataclass(frozen=True)
class LaidOut:
    """A call whose inputs lie in a folder. arguments: in call order, images as images.Layout.spec has them, scalars.

    error: why there is none; then nothing else is said.
    """

    case: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    error: str | None = None


def main() -> None:
    """Read the task from the command line: `config` (a file; the current folder is its root) and `lay_out`'s own."""
    processes.collect_rarely()
    task = json.loads(sys.argv[1])
    try:
        config = load(Path(task.pop("config")))
        lay_out(config, **(task | {"folder": Path(task["folder"])}))
    except KernelproofError as error:
        sys.exit(f"kernelproof: {error}")


def once(
    config: Config, operator: str, variant: str, shape: str, options: Mapping[str, Any], inputs: Path | None = None
) -> OneCall:
    """Make the call in this process. `inputs`: a folder that `lay_out` fills, now or soon; by default one of our own.

    With `inputs` torch cannot be imported any more in this process, where the variant needs none. Raises BenchError
    where there is no GPU, no such shape or option, or where the inputs could not be made.
    """
    settings = config.operator(operator).variant(variant)
    case_of(config.operator(operator), settings, shape, options)
    options = _known_options(config.operator(operator), config.root, options)
    if settings.device == "cuda":
        from kernelproof import gpu

        present, why = gpu.available()
        if not present:
            raise BenchError(f"no GPU: {why}", subject=settings.key, hint="run it on a machine with an NVIDIA GPU")
    library = None
    if settings.abi != "python":
        path = config.record("build", operator, variant)
        if not path.exists():
            raise BenchError("it was not built", subject=settings.key, hint=f"`{config.command('build', settings)}`")
        built = read(path, BuildRecord)
        library = builds.library(config, settings, built)
    with contextlib.ExitStack() as stack:
        if inputs is None:
            inputs = stack.enter_context(processes.scratch_folder("once"))
            lay_out(config, operator, variant, shape, options, inputs)
        elif settings.abi == "tvm_ffi":
            memory.without_torch()
        return _made(config, settings, library, inputs)


def _made(config: Config, settings: VariantConfig, library: Path | None, inputs: Path) -> OneCall:
    from kernelproof import loading

    where = memory.memory_of(settings.abi, settings.device)
    function = loading.load(settings, library, config.root.resolve())
    call = _awaited(inputs, settings)
    values, buffers = [], []
    for name, value in call.arguments.items():
        if isinstance(value, dict):
            buffers.append(where.allocate(memory.payload_bytes(value)))
            where.write(buffers[-1], memory.payload(value))
            value = where.view(buffers[-1], value)
        if settings.passing == "destination" or name not in call.outputs:
            values.append(value)
    try:
        function(*values)
        where.synchronise()
        with nsight.profiled(settings.device):
            started = time.perf_counter()
            function(*values)
            where.synchronise()
            elapsed_ms = 1000 * (time.perf_counter() - started)
    except Exception as error:
        raise BenchError(
            f"its call raised {type(error).__name__}: {error}{loading.raised_in(error, config.root.resolve())}",
            subject=settings.key,
            hint=f"`{config.command('test', settings)}` says what is wrong with it",
        ) from error
    return OneCall(settings.key, call.case, elapsed_ms, **call.cost)


def _awaited(inputs: Path, variant: VariantConfig) -> LaidOut:
    deadline = time.monotonic() + WAIT_S
    while not (inputs / LAID_OUT).is_file():
        if time.monotonic() > deadline:
            raise BenchError(f"no inputs appeared within {WAIT_S:g} s", subject=f"{variant.key}: {inputs}")
        time.sleep(LOOK_EVERY_S)
    found = LaidOut(**json.loads((inputs / LAID_OUT).read_text(encoding="utf-8")))
    if found.error is not None:
        raise BenchError(f"the call's inputs could not be made: {found.error}", subject=variant.key)
    return found


def lay_out(config: Config, operator: str, variant: str, shape: str, options: Mapping[str, Any], folder: Path) -> None:
    """Write the inputs of a call into a folder, for `once`, which is told of any error too.

    Imports torch, and touches no GPU. Raises what the operator's module raises (JudgeError), and BenchError for an
    unknown shape.
    """
    settings = config.operator(operator)
    try:
        with blamed(settings.module, config.root):
            said = _laid_out(config, case_of(settings, settings.variant(variant), shape, options), folder)
    except Exception as error:
        words = str(error) if isinstance(error, KernelproofError) else f"{type(error).__name__}: {error}"
        _say(folder, LaidOut(error=words))
        raise
    _say(folder, said)


def lay_out_beside(
    config: Config, saved: Path, operator: str, variant: str, shape: str, options: Mapping[str, Any], folder: Path
) -> None:
    """Call `lay_out` in a process of its own; should that end without a word, `once` is told so.

    `saved`: the file that the configuration can be loaded from.

    For the process that reads Nsight Compute's reports: NVIDIA's module for that and torch in one process end in a
    segmentation fault.
    """
    task = {"operator": operator, "variant": variant, "shape": shape, "options": dict(options), "folder": str(folder)}
    task["config"] = str(saved)
    command = [sys.executable, "-P", "-m", "kernelproof.single_call", json.dumps(task)]
    try:
        done = processes.run(command, cwd=config.root, env=processes.own_environment(), check=False, timeout_s=WAIT_S)
        words = ": ".join([describe_exit(done.returncode), *done.stderr.strip().splitlines()[-1:]])
    except ToolError as error:
        words = error.message
    if not (folder / LAID_OUT).is_file():
        _say(folder, LaidOut(error=f"the process that makes them {words}"))


def _laid_out(config: Config, case: Case, folder: Path) -> LaidOut:
    from kernelproof import images, judge, operators

    owner = operators.load(config.operator(case.operator).module, config.root)
    case = replace(case, family=usual_family(owner.families))
    call, cost = owner.make_call(case, judge.generator(case)), owner.cost(case)
    spec = images.layout_images(call, folder).spec
    numbers = {"flops": cost.flops, "bytes_read": cost.bytes_read, "bytes_written": cost.bytes_written}
    return LaidOut(case.bench_id, numbers, spec, list(call.outputs))


def _say(folder: Path, what: LaidOut) -> None:
    atomic_write(folder / LAID_OUT, json.dumps(asdict(what)))


def case_of(operator: OperatorConfig, variant: VariantConfig, shape: str, options: Mapping[str, Any]) -> Case:
    """The case of a shape and options in the variant's first data type. Raises BenchError for an unknown shape."""
    if shape not in operator.shapes:
        raise _unknown(f"{operator.name}: {shape}", "no such shape", shape, list(operator.shapes))
    return Case(operator.name, shape, operator.shapes[shape], dict(options), variant.dtypes[0])


def _known_options(operator: OperatorConfig, root: Path, options: Mapping[str, Any]) -> dict[str, OptionValue]:
    """The values of options given as text (`true`, `8`), as the configuration or the operator's module has them.

    Raises BenchError for an option or value that neither has.
    """
    sources = [operator.test.options, operator.bench.options, stated(operator.module, root).options or {}]
    sources.append({name: [value] for name, value in operator.profile.options.items()})
    known: dict[str, list[Any]] = {}
    for source in sources:
        known |= {name: [*known.get(name, []), *values] for name, values in source.items()}
    found = {}
    for name, value in options.items():
        if name not in known:
            raise _unknown(f"{operator.name}: {name}", "no such option", name, list(known))
        of_text = {plain(one): one for one in known[name]}
        if plain(value) not in of_text:
            raise _unknown(f"{operator.name}: {name}={plain(value)}", "no such value", plain(value), list(of_text))
        found[name] = of_text[plain(value)]
    return found


def _unknown(subject: str, what: str, given: str, known: Sequence[str]) -> BenchError:
    return BenchError(f"{what}; {among(given, known) if known else 'there is none'}", subject=subject)


if __name__ == "__main__":
    main()
