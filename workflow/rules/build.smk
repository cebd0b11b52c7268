rule build:
    input:
        sources=lambda wildcards: variant_of(wildcards).sources,
        binding=lambda wildcards: support.binding_files(CONFIG.operator(wildcards.operator), variant_of(wildcards)),
        modules=modules("build"),
    output:
        "results/build/{operator}/{variant}.json",
    log:
        "results/logs/build/{operator}/{variant}.log",
    params:
        variant=lambda wildcards: specification(variant_of(wildcards)),
        archs=CONFIG.archs,
        machine=MACHINE,
    shell:
        "{KERNELPROOF} build --config {RESOLVED} --operator {wildcards.operator} --variant {wildcards.variant} 2> {log}"
