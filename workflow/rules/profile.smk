rule profile:
    input:
        build="results/build/{operator}/{variant}.json",
        test="results/test/{operator}/{variant}.json",
        module=lambda wildcards: own_module(wildcards.operator),
    output:
        "results/profile/{operator}/{variant}.json",
    log:
        "results/logs/profile/{operator}/{variant}.log",
    # Counters are replayed, and another job on the GPU would be in them: one profile at a time has the GPU's lease. A
    # second is at what needs none: inputs, and the report that it made. Beside four tests there is no room for one.
    threads: support.measuring_threads(workflow.cores, "cuda")
    params:
        settings=lambda wildcards: settings("profile", f"{wildcards.operator}/{wildcards.variant}"),
        modules=lambda wildcards: modules("profile", wildcards.operator),
        machine=MACHINE,
    shell:
        "{KERNELPROOF} profile --config {RESOLVED} --operator {wildcards.operator} --variant {wildcards.variant} 2> {log}"
