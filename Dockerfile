# docker build -t fedkin . && docker run --rm fedkin demo
FROM python:3.12-slim

RUN useradd --create-home kin
WORKDIR /home/kin/fedkin
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir ".[ray,flower,parquet,onnx]"

USER kin
WORKDIR /home/kin
ENTRYPOINT ["fedkin"]
CMD ["--help"]
