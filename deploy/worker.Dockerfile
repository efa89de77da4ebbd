# Your training image with the client and the NCCL plugin. Build it in the repository's root:
#
#   docker build -f deploy/worker.Dockerfile --build-arg BASE=my-training -t my-training-reducer .
#
# BASE is a Debian or Ubuntu with root as its user, whose python3 is 3.11 or later. The build uses
# BASE, so the client and the plugin need only the glibc and the Python of BASE.
ARG BASE=python:3.11-slim-bookworm

# This stage begins with the same lines as the first stage of Dockerfile, so that both share its layers.
FROM ${BASE} AS build
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        cmake g++ ninja-build nlohmann-json3-dev python3-dev python3-venv
# Settings of pip for your own index or folder of wheels. Only this stage uses them.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY . /src
RUN python3 -m venv /opt/build \
 && PIP_CONSTRAINT=/src/constraints.txt /opt/build/bin/pip wheel --no-cache-dir --wheel-dir /wheels /src
RUN cmake -G Ninja -S /src/nccl_plugin -B /plugin -DCMAKE_BUILD_TYPE=Release \
 && cmake --build /plugin \
 && DESTDIR=/installed cmake --install /plugin --prefix /usr/local --strip

FROM ${BASE}
COPY --from=build /installed/ /
# Packages of BASE are not upgraded if their versions suffice.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    if ! python3 -m pip --version > /dev/null; then apt-get update \
     && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-pip \
     && rm -rf /var/lib/apt/lists/*; fi \
 && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-index \
        --find-links /wheels open-reduction-server \
 && ldconfig
# NCCL loads the plugin by its name if NCCL_NET_PLUGIN=reducer and NCCL_COLLNET_ENABLE=1 are set.
