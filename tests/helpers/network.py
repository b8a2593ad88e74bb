"""A preloaded C library that records and refuses name look-ups and connections.

It also covers libraries written in other languages, and every process that the guarded process starts.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void note(const char *what, const char *name) {
  const char *file = getenv("ATTNKIT_TEST_NETWORK");
  int fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;
  if (fd >= 0) { dprintf(fd, "%s %s\n", what, name ? name : "-"); close(fd); }
}
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) { note("lookup", node); return EAI_AGAIN; }
struct hostent *gethostbyname(const char *name) { note("lookup", name); return NULL; }
int res_query(const char *name, int c, int t, unsigned char *a, int n) {
  note("lookup", name); return -1; }
static int refused(const struct sockaddr *to) {
  char text[64] = "";
  if (to && to->sa_family == AF_INET)
    inet_ntop(AF_INET, &((struct sockaddr_in *)to)->sin_addr, text, sizeof text);
  else if (to && to->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((struct sockaddr_in6 *)to)->sin6_addr, text, sizeof text);
  else return 0;
  if (!strncmp(text, "127.", 4) || !strcmp(text, "::1")) return 0;
  note("connect", text); errno = ENETUNREACH; return 1;
}
int connect(int fd, const struct sockaddr *to, socklen_t n) {
  return refused(to) ? -1 : (int)syscall(SYS_connect, fd, to, n); }
ssize_t sendto(int fd, const void *b, size_t n, int f, const struct sockaddr *to, socklen_t l) {
  return refused(to) ? -1 : syscall(SYS_sendto, fd, b, n, f, to, l); }
"""


def guarded_environment(folder: Path) -> Mapping[str, str]:
    """Return environment variables that preload the library, and place home and caches in the folder.

    Skip the test if there is no C compiler.
    """
    compiler = shutil.which("cc") or pytest.skip("a guard of the network needs a C compiler")
    (folder / "home").mkdir(parents=True)
    (folder / "guard.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", "guard.so", "guard.c"]
    subprocess.run(command, cwd=folder, check=True)
    home = {name: str(folder / "home") for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "DO_NOT_TRACK")}
    guard = {"LD_PRELOAD": str(folder / "guard.so"), "ATTNKIT_TEST_NETWORK": str(folder / "seen")}
    return kept | home | guard


def network_calls(folder: Path) -> list[str]:
    """Return the recorded look-ups and connections, such as "lookup example.org"."""
    path = folder / "seen"
    return path.read_text().splitlines() if path.exists() else []
