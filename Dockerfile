# ROS 2 Jazzy, the package and all engines. docs/installation.md says how to use the image.
FROM ros:jazzy-ros-base

RUN apt-get update && apt-get install -y --no-install-recommends \
    python3-colcon-common-extensions python3-opencv python3-pil python3-pip python3-venv ros-jazzy-cv-bridge \
    ros-jazzy-vision-msgs \
    && rm -rf /var/lib/apt/lists/*

# Ubuntu's OpenCV was built with NumPy 1. setup.py says why the other versions are limited.
RUN python3 -m venv --system-site-packages /opt/venv && /opt/venv/bin/pip install --no-cache-dir "numpy<2" \
    "torch>=2.6,!=2.13.0" torchvision ml_dtypes safetensors "rosbags>=0.11" scikit-learn scipy tqdm \
    onnx onnxscript onnx2torch onnxruntime openvino

ENV PATH=/opt/venv/bin:$PATH
WORKDIR /ws
COPY . src/split_infer_ros
RUN . /opt/ros/jazzy/setup.sh && python3 -m colcon build --packages-select split_infer_ros

# The image's entry point sources ROS 2. This adds the workspace.
RUN sed -i '/^exec /i source /ws/install/setup.bash' /ros_entrypoint.sh
CMD ["ros2", "launch", "split_infer_ros", "pipeline.launch.py"]
