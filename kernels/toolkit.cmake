# Sets TANGRAM_NVCC to a CUDA compiler that supports every architecture of the build. Candidates: the user's toolkit, by
# CUDAToolkit_ROOT (as find_package(CUDAToolkit) reads it); the wheels that e2e/setup/install.sh installs in build/cuda;
# nvcc on the PATH. CMake's CUDA language is not used: its configuration links a program with cudart, but the build
# links none.
file(GLOB wheels ${CMAKE_SOURCE_DIR}/build/cuda/nvidia/cu*/bin)
set(chosen ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
if(chosen)
  # If the user names a toolkit, no other one is used.
  find_program(TANGRAM_NVCC nvcc PATHS ${chosen} PATH_SUFFIXES bin NO_DEFAULT_PATH)
else()
  find_program(TANGRAM_NVCC nvcc HINTS ${wheels} PATHS /usr/local/cuda/bin)
endif()
if(NOT TANGRAM_NVCC)
  message(FATAL_ERROR "No CUDA compiler for kernels/: run e2e/setup/install.sh, which installs one, or name your toolkit with "
    "-DCUDAToolkit_ROOT=FOLDER (12.8 or newer), or build without device code with -DTANGRAM_CUDA=OFF.")
endif()
execute_process(COMMAND ${TANGRAM_NVCC} --version OUTPUT_VARIABLE version RESULT_VARIABLE failed)
string(REGEX MATCH "release ([0-9.]+)" version "${version}")
if(failed OR CMAKE_MATCH_1 VERSION_LESS 12.8)
  message(FATAL_ERROR "${TANGRAM_NVCC} is of CUDA '${CMAKE_MATCH_1}', and kernels/ need 12.8 or newer: name another with "
    "-DCUDAToolkit_ROOT=FOLDER (and -UTANGRAM_NVCC), or build without device code with -DTANGRAM_CUDA=OFF.")
endif()
