rule manifest:
    input:
        RECORDS,
    output:
        "results/manifest/{folder}.json",
    log:
        "results/logs/manifest/{folder}.log",
    params:
        modules=modules("manifest"),
        settings=lambda wildcards: settings("manifest", wildcards.folder),
    shell:
        "{KERNELPROOF} manifest --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
