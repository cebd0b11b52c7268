rule manifest:
    input:
        RECORDS,
    output:
        "results/manifest/{folder}.json",
    log:
        "results/logs/manifest/{folder}.log",
    params:
        modules=modules("manifest"),
        settings=digest([CONFIG.project, dataclasses.asdict(CONFIG.gate), dataclasses.asdict(CONFIG.bundle)]),
    shell:
        "{KERNELPROOF} manifest --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
