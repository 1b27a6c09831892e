# docker build -t fedkin . && docker run --rm fedkin demo
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 kin
WORKDIR /home/kin/fedkin
# The version; git and its tags stay outside. --build-arg VERSION=0.2.0
ARG VERSION
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# uv knows where PyTorch's builds without CUDA are.
RUN pip install --no-cache-dir uv==0.13.8 \
    && SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" uv pip install --system --no-cache --torch-backend=cpu ".[ray,flower,parquet,onnx]"

USER 1000
WORKDIR /home/kin
ENTRYPOINT ["fedkin"]
CMD ["--help"]
