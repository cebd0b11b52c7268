rule page:
    input:
        manifest="results/manifest/{folder}.json",
    output:
        html="reports/{folder}/report.html",
        summary="reports/{folder}/summary.md",
    log:
        "results/logs/report/{folder}.log",
    params:
        modules=modules("report"),
        templates=support.content_digest(support.template_files()),
    shell:
        "{KERNELPROOF} report --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
