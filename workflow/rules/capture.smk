rule capture:
    input:
        modules("capture"),
    output:
        "results/capture/capture.json",
    log:
        "results/logs/capture.log",
    params:
        machine=MACHINE,
    shell:
        "{KERNELPROOF} capture --config {RESOLVED} 2> {log}"
