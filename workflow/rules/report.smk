rule page:
    input:
        manifest="results/manifest/{folder}.json",
        modules=modules("report"),
        templates=support.template_files(),
    output:
        html="reports/{folder}/report.html",
        summary="reports/{folder}/summary.md",
    log:
        "results/logs/report/{folder}.log",
    shell:
        "{KERNELPROOF} report --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
