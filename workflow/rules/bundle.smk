rule bundle:
    input:
        manifest="results/manifest/{folder}.json",
        html="reports/{folder}/report.html",
        summary="reports/{folder}/summary.md",
    output:
        manifest="reports/{folder}/manifest.yaml",
        receipt="reports/{folder}/bundle.json",  # names the tarball, whose own name holds the time of the run
    log:
        "results/logs/bundle/{folder}.log",
    params:
        modules=modules("bundle"),
    shell:
        "{KERNELPROOF} bundle --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
