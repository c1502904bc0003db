# cmake -DFROM=FILE -DTO=FILE -P embed.cmake: writes the bytes of a file as rows of a C array of uint64_t, padded with
# zeros. Not .incbin: ccache does not see the included file and would reuse the object of an older one.
file(READ ${FROM} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR missing "(16 - ${digits} % 16) % 16")
string(REPEAT 0 ${missing} zeros)
string(REGEX MATCHALL "................" words "${bytes}${zeros}")
string(REGEX REPLACE "(..)(..)(..)(..)(..)(..)(..)(..);?" "0x\\8\\7\\6\\5\\4\\3\\2\\1,\n" words "${words}")
file(WRITE ${TO} "${words}")
