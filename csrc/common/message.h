// A launcher's failure as text which outlives the call that made it.
#pragma once

#include <cstdarg>
#include <cstdio>

// The buffer is the calling thread's own; the next message on that thread overwrites it.
__attribute__((format(printf, 1, 2))) static inline const char *message(const char *format, ...) {
    static thread_local char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}
