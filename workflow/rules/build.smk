# A variant with sources is a job of its own; what is only a Python callable needs no compiler, and shares one.
def built(name, operator, variants):
    rule:
        name:
            name
        input:
            sources=[source for variant in variants for source in variant.sources],
            binding=[path for variant in variants for path in support.binding_files(operator, variant)],
            modules=modules("build"),
        output:
            [record("build", variant) for variant in variants],
        log:
            f"results/logs/build/{name}.log",
        params:
            operator=operator.name,
            variants=" ".join(f"--variant {variant.name}" for variant in variants),
            specification=[specification(variant) for variant in variants],
            archs=CONFIG.archs,
            machine=MACHINE,
        shell:
            "{KERNELPROOF} build --config {RESOLVED} --operator {params.operator} {params.variants} 2> {log}"


for operator in CONFIG.operators.values():
    compiled, callables = support.by_build(operator)
    for variant in compiled:
        built(f"build_{operator.name}_{variant.name}", operator, [variant])
    if callables:
        built(f"build_{operator.name}_callables", operator, callables)
