# A variant with sources is a job of its own; what is only a Python callable needs no compiler, and shares one.
for job in support.build_jobs(CONFIG, driver=DRIVER):

    rule:
        name:
            f"build_{job.name}"
        input:
            sources=[path for variant in job.variants for path in support.source_files(job.operator, variant)],
            binding=[path for variant in job.variants for path in support.binding_files(job.operator, variant)],
        output:
            [record("build", variant) for variant in job.variants],
        log:
            f"results/logs/build/{job.name}.log",
        priority: 2 * job.priority
        resources:
            anywhere=1,
        params:
            operator=job.operator.name,
            variants=job.arguments,
            settings=[settings("build", variant.key) for variant in job.variants],
            modules=modules("build"),
            machine=MACHINE,
        shell:
            "{KERNELPROOF} build --config {RESOLVED} --operator {params.operator} {params.variants} 2> {log}"
