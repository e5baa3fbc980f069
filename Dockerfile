# docker build -t gradleak .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" gradleak audit --model my-model --data my.csv --out out
FROM python:3.12-slim

# The CPU build of torch; for a GPU give the index of another one.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch \
    && pip install --no-cache-dir "/src[dp,lora]" \
    && rm -rf /src \
    && useradd --create-home gradleak \
    && mkdir --mode=777 /cache

# Weights and corpora that it fetches; mount a volume to keep them.
ENV GRADLEAK_CACHE=/cache HF_HOME=/cache/huggingface
USER gradleak
WORKDIR /work
ENTRYPOINT ["gradleak"]
CMD ["--help"]
