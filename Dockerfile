# docker build -t fedkin . && docker run --rm fedkin demo
FROM python:3.12-slim

RUN useradd --create-home kin
WORKDIR /home/kin/fedkin
# The version; git and its tags stay outside. --build-arg VERSION=0.2.0
ARG VERSION
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
    && SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" pip install --no-cache-dir ".[ray,flower,parquet,onnx]"

USER kin
WORKDIR /home/kin
ENTRYPOINT ["fedkin"]
CMD ["--help"]
