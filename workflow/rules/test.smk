# Variants are tested one by one, so that a changed kernel costs only its own test; the baselines of an operator change
# together with the environment and share one interpreter.
def tested(name, operator, variants):
    rule:
        name:
            name
        input:
            build=[record("build", variant) for variant in variants],
            modules=modules("test", operator.name),
        output:
            [record("test", variant) for variant in variants],
        log:
            f"results/logs/test/{name}.log",
        params:
            operator=operator.name,
            variants=" ".join(f"--variant {variant.name}" for variant in variants),
            specification=[specification(variant) for variant in variants],
            cases=json.dumps([operator.shapes, dataclasses.asdict(operator.test), dataclasses.asdict(CONFIG.test)]),
            machine=MACHINE,
        threads: support.test_threads(workflow.cores)
        shell:
            "{KERNELPROOF} test --config {RESOLVED} --operator {params.operator} {params.variants} 2> {log}"


for operator in CONFIG.operators.values():
    for variant in operator.variants.values():
        tested(f"test_{operator.name}_{variant.name}", operator, [variant])
    for device in ("cpu", "cuda"):
        if baselines := [variant for variant in operator.baselines.values() if variant.device == device]:
            tested(f"test_{operator.name}_baselines_{device}", operator, baselines)
