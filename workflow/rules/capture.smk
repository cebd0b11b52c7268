rule capture:
    output:
        "results/capture/capture.json",
    log:
        "results/logs/capture.log",
    params:
        modules=modules("capture"),
        machine=MACHINE,
    shell:
        "{KERNELPROOF} capture --config {RESOLVED} 2> {log}"
