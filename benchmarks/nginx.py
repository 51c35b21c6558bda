"""nginx as the yardstick: one worker, no buffering, upstream connections kept alive, nothing logged. And as it is shipped.

What lives here: where nginx is, its version and its configuration.
What must not: how it is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HOW_TO_INSTALL = (
    "nginx is not installed: `sudo apt-get install nginx-light` (any version from 1.20 on will do), then run this again"
)

TUNED = """\
    upstream engine {{ server {upstream}; keepalive 1024; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
"""
"""As whoever passes streams on should have it: the yardstick of proxy_cost.py and short.py."""

AS_SHIPPED = """\
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://{upstream};
        }}
    }}
"""
"""Buffering as nginx does it by itself. So is HTTP/1.0 towards the upstream, and that is half of it: an answer without HTTP
chunks is held until a buffer is full, while of one in HTTP chunks nginx 1.22 passes each on, buffering or not."""

UNBUFFERED = """\
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://{upstream};
            proxy_buffering off;
        }}
    }}
"""
"""The same but for one line."""

_CONFIGURATION = """\
daemon off;
{user}worker_processes 1;
worker_rlimit_nofile 20000;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 20000; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{server}}}
"""


def find() -> str | None:
    """The binary; Debian keeps it where only root's path looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin")


def version(binary: str) -> str:
    """As it says itself: ``nginx/1.22.1``."""
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition(" ")[2]


def command(binary: str, port: int, upstream: str, directory: Path, server: str = TUNED) -> list[str]:
    """Write the configuration and return what starts it in the foreground."""
    path = directory / "nginx.conf"
    path.write_text(configuration(port, upstream, directory, server, is_root=os.geteuid() == 0))
    return [binary, "-c", str(path), "-p", str(directory), "-e", "stderr"]


def configuration(port: int, upstream: str, directory: Path, server: str = TUNED, *, is_root: bool = False) -> str:
    """The whole file; ``server`` is one of the three above."""
    user = "user root;\n" if is_root else ""  # else its worker could not enter our directory
    inside = server.format(port=port, upstream=upstream.removeprefix("http://"))
    return _CONFIGURATION.format(user=user, directory=directory, server=inside)
