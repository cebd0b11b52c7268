rule manifest:
    input:
        capture="results/capture/capture.json",
        build=[record("build", variant) for variant in BUILT],
        test=[record("test", variant) for variant in BUILT],
        bench=[f"results/bench/{operator}-{device}.json" for operator, device in BENCHED],
        ceilings=[f"results/bench/ceilings/{device}.json" for device in sorted({device for _, device in BENCHED})],
        profile=[record("profile", variant) for variant in PROFILED],
    output:
        "results/manifest/{folder}.json",
    log:
        "results/logs/manifest/{folder}.log",
    params:
        modules=modules("manifest"),
        settings=digest([CONFIG.project, dataclasses.asdict(CONFIG.gate), dataclasses.asdict(CONFIG.bundle)]),
    shell:
        "{KERNELPROOF} manifest --config {RESOLVED} --folder reports/{wildcards.folder} 2> {log}"
