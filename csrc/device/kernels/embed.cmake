# Writes the sources of device kernels into a C++ file, as a table of names and texts:
#   cmake -DTO=<file> -P embed.cmake
file(GLOB files ${CMAKE_CURRENT_LIST_DIR}/*.dev)
set(text "#include \"device/program/source.h\"\n\nnamespace pyflow::device {\n\n")
string(APPEND text "const std::map<std::string_view, std::string_view>& kernel_texts() {\n")
string(APPEND text "  static const std::map<std::string_view, std::string_view> texts = {\n")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content)
  string(APPEND text "      {\"${name}\", R\"dev(${content})dev\"},\n")
endforeach()
string(APPEND text "  };\n  return texts;\n}\n\n}  // namespace pyflow::device\n")
file(WRITE ${TO} "${text}")
