# Stallwise beside PyTorch's own image; the image's torch is kept as it is. Build: docker build -t stallwise .
ARG BASE=pytorch/pytorch:2.11.0-cuda13.0-cudnn9-runtime
FROM ${BASE}
COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
# pip may not change torch: what is installed now is a constraint.
RUN python -m pip freeze | grep -iE '^(torch|numpy)==' > /tmp/installed.txt \
 && python -m pip install --no-cache-dir -c /tmp/installed.txt /src \
 && rm -r /src /tmp/installed.txt \
 && stallwise doctor
WORKDIR /workspace
ENTRYPOINT ["stallwise"]
