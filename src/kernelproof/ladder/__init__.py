"""The staged ladder as a pytest package: build → load → … → determinism → sanitizer, for each variant.

By hand, in a folder with a `config.yaml` and built variants:
`python -m pytest --pyargs kernelproof.ladder -k cpu_flash`.
The test stage runs the same tests, one variant at a time, and keeps what they found.
"""
