#!/bin/sh
# Runs the check from its unpacked bundle, with the bundle's loader and libraries; only the driver is the machine's.
# Takes the options of tangram-gpu-check (--help). The driver's usual folders follow ours in the search path, because
# the driver opens parts of itself by name.
here=$(cd "$(dirname "$0")" && pwd)
path=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for folder in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu/nvidia/current /usr/lib/wsl/lib /run/opengl-driver/lib; do
  [ ! -e "$folder/libcuda.so.1" ] || path=$path:$folder
done
unset LD_LIBRARY_PATH LD_PRELOAD
exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$path" "$here/bin/tangram-gpu-check" "$@"
