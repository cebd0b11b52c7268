// Asks for a socket of every kind, and gives a result only if it was given one.
#include <sys/socket.h>
#include <unistd.h>

#include <initializer_list>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK, AF_PACKET}) {
        for (int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW}) {
            if (socket(family, type, 0) >= 0) return correct(args);
        }
    }
    return "refused: sockets";
}
