# All contenders of an operator on a device are measured together: a ratio of times from two runs means little.
rule bench:
    input:
        build=lambda wildcards: [
            record("build", variant) for variant in CONFIG.operator(wildcards.operator).contenders(wildcards.device)
        ],
        test=lambda wildcards: [
            record("test", variant) for variant in CONFIG.operator(wildcards.operator).contenders(wildcards.device)
        ],
        module=lambda wildcards: own_module(wildcards.operator),
    output:
        "results/bench/{operator}-{device}.json",
    log:
        "results/logs/bench/{operator}-{device}.log",
    wildcard_constraints:
        device="cpu|cuda",
    # Nothing else runs on a device while something is measured there.
    threads: lambda wildcards: support.measuring_threads(workflow.cores, wildcards.device)
    resources:
        anywhere=lambda wildcards: support.EVERYBODY if wildcards.device == "cpu" else 0,
    params:
        settings=lambda wildcards: settings("bench", f"{wildcards.operator}-{wildcards.device}"),
        modules=lambda wildcards: modules("bench", wildcards.operator),
        machine=MACHINE,
    shell:
        "{KERNELPROOF} bench --config {RESOLVED} --operator {wildcards.operator} --device {wildcards.device} 2> {log}"


# What the device itself reaches: once a machine, and alone like every measurement. It takes seconds; a GPU's comes first,
# so that a run whose machine is taken back has it, and is not to wait for tests that share the GPU.
for device in ("cpu", "cuda"):

    rule:
        name:
            f"ceilings_{device}"
        output:
            f"results/bench/ceilings/{device}.json",
        log:
            f"results/logs/bench/ceilings-{device}.log",
        priority: support.FIRST if device == "cuda" or not DRIVER else 0
        threads: support.measuring_threads(workflow.cores, device)
        resources:
            gpu_tests=support.EVERYBODY if device == "cuda" and DRIVER else 0,
            anywhere=support.EVERYBODY if device == "cpu" else 0,
        params:
            device=device,
            settings=settings("bench", f"ceilings/{device}"),
            modules=modules("ceilings"),
            machine=MACHINE,
        shell:
            "{KERNELPROOF} bench --config {RESOLVED} --ceilings --device {params.device} 2> {log}"
