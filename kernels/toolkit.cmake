# Sets TANGRAM_NVCC to a CUDA compiler that knows every architecture we build for: the user's, by CUDAToolkit_ROOT (as find_package(CUDAToolkit) reads
# it); the wheels that e2e/setup/install.sh puts into build/cuda; or what is on the PATH. CMake's own CUDA language is not used: it wants to link a
# program with cudart while it configures, and we link none.
file(GLOB wheels ${CMAKE_SOURCE_DIR}/build/cuda/nvidia/cu*/bin)
set(chosen ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
if(chosen)
  # A toolkit that the user names is used, or none.
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
