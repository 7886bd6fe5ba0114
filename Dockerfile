# autotune with PyCUDA and nvcc. Build: docker build -t autotune .
# Run, with NVIDIA's container toolkit: docker run --rm --gpus all -v "$PWD:/study" autotune tune lenet-k5
FROM python:3.12
WORKDIR /opt/autotune
COPY . .
RUN pip install --no-cache-dir . 'cuda-toolkit[nvcc,cudart,cccl,profiler]==13.0.*' \
    && autotune doctor --build-pycuda \
    && pip install --no-cache-dir '.[cuda13]'
WORKDIR /study
ENTRYPOINT ["autotune"]
