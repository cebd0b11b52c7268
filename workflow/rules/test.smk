# Variants are tested one by one, so that a changed kernel costs only its own test. The baselines of an operator change
# together with the environment, and of what is for a GPU, where there is none, there is only that to say: one interpreter.
for job in support.test_jobs(CONFIG, driver=DRIVER):

    rule:
        name:
            f"test_{job.name}"
        input:
            build=[record("build", variant) for variant in job.variants],
            module=own_module(job.operator.name),
        output:
            [record("test", variant) for variant in job.variants],
        log:
            f"results/logs/test/{job.name}.log",
        priority: job.priority
        threads: support.test_threads(workflow.cores, driver=DRIVER)
        resources:
            gpu_tests=int(job.on_gpu and DRIVER),
            cpu_tests=int(DRIVER and not job.on_gpu),
            anywhere=1,
        params:
            operator=job.operator.name,
            variants=job.arguments,
            settings=[settings("test", variant.key) for variant in job.variants],
            modules=modules("test", job.operator.name),
            machine=MACHINE,
            sanitizer=support.sanitizer_identity(job.variants),
        shell:
            "OMP_NUM_THREADS={threads} {KERNELPROOF} test --config {RESOLVED} --operator {params.operator} {params.variants} 2> {log}"
