# Compiles the Python code that handles every contribution with mypyc. One library has all of the
# code. Each module has a small library that refers to the large one, and Python finds the small
# library before the .py file. mypyc chooses the names of the generated files.
get_filename_component(root "${CMAKE_CURRENT_SOURCE_DIR}/../.." ABSOLUTE)
file(GLOB modules RELATIVE "${root}" CONFIGURE_DEPENDS
     "${root}/reducer/wire/*.py" "${root}/reducer/core/*.py" "${root}/reducer/core/*/*.py")
list(FILTER modules EXCLUDE REGEX "/__init__\\.py$")
foreach(name before_hello buffers cells connection executor leftovers outbox shell
             table_kernels turns)
  list(APPEND modules reducer/server/data/${name}.py)
endforeach()
list(TRANSFORM modules PREPEND "${root}/" OUTPUT_VARIABLE module_paths)

set(made "${CMAKE_CURRENT_BINARY_DIR}/mypyc")
set(library_sources "${made}/__native_reducer.c")
set(shims "")
foreach(module IN LISTS modules)
  string(REGEX REPLACE "\\.py$" "" name "${module}")
  list(APPEND shims "${made}/${name}.c")
  string(REPLACE "/" "___" name "${name}")
  list(APPEND library_sources "${made}/__native_${name}.c")
endforeach()

set(generate "${CMAKE_CURRENT_SOURCE_DIR}/generate_c.py")
add_custom_command(
  OUTPUT ${library_sources} ${shims} "${made}/__native_reducer.h"
         "${made}/__native_internal_reducer.h" "${made}/_compiled.py"
  COMMAND "${Python_EXECUTABLE}" "${generate}" "${made}" ${modules}
  DEPENDS "${generate}" ${module_paths}
  WORKING_DIRECTORY "${root}"
  COMMENT "mypyc: Python to C"
  VERBATIM)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import mypyc; print(mypyc.__path__[0])"
  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE mypyc COMMAND_ERROR_IS_FATAL ANY)

python_add_library(reducer__mypyc MODULE WITH_SOABI ${library_sources})
target_include_directories(reducer__mypyc PRIVATE "${mypyc}/lib-rt" "${made}")
target_compile_options(reducer__mypyc PRIVATE -O3 -w) # generated code: no warnings
set_target_properties(reducer__mypyc PROPERTIES C_VISIBILITY_PRESET hidden)
install(TARGETS reducer__mypyc LIBRARY DESTINATION .)
install(FILES "${made}/_compiled.py" DESTINATION reducer)

foreach(module shim IN ZIP_LISTS modules shims)
  get_filename_component(folder "${module}" DIRECTORY)
  get_filename_component(name "${module}" NAME_WE)
  string(REGEX REPLACE "[/.]" "_" target "compiled_${module}")
  python_add_library(${target} MODULE WITH_SOABI "${shim}")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME "${name}"
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/${folder}")
  install(TARGETS ${target} LIBRARY DESTINATION "${folder}")
endforeach()
