# cmake -DFROM=FILE -DTO=FILE -P embed.cmake: the bytes of a file as the rows of a C array of uint64_t, the last filled up with zeros. Not .incbin:
# ccache would take the object of an older file, which it does not see.
file(READ ${FROM} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR missing "(16 - ${digits} % 16) % 16")
string(REPEAT 0 ${missing} zeros)
string(REGEX MATCHALL "................" words "${bytes}${zeros}")
string(REGEX REPLACE "(..)(..)(..)(..)(..)(..)(..)(..);?" "0x\\8\\7\\6\\5\\4\\3\\2\\1,\n" words "${words}")
file(WRITE ${TO} "${words}")
