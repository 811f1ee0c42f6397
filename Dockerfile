# nemo-lite serve on the CPU, from the wheel in dist/: docs/en/server.md has the commands.
FROM python:3.12-slim

# PyTorch's wheels for the CPU alone are a tenth of those for GPUs.
RUN --mount=type=bind,source=dist,target=/dist \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /constraints.txt \
        "torch==2.13.0+cpu" "$(ls /dist/nemo_lite-*.whl)[serve,onnx,subwords,formats]"

RUN useradd --create-home --uid 10001 serve
USER 10001
WORKDIR /home/serve
EXPOSE 8000

HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

# Requests need the token of the environment variable NEMO_LITE_SERVE_TOKEN: a container listens for other machines.
ENTRYPOINT ["nemo-lite", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/model"]
