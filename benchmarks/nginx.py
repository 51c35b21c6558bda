"""nginx as the yardstick: one worker, no buffering, upstream connections kept alive, nothing logged.

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
    upstream engine {{ server {engine}; keepalive 1024; }}
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
}}
"""


def find() -> str | None:
    """The binary; Debian keeps it where only root's path looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin")


def version(binary: str) -> str:
    """As it says itself: ``nginx/1.22.1``."""
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition(" ")[2]


def command(binary: str, port: int, upstream: str, directory: Path) -> list[str]:
    """Write the configuration and return what starts it in the foreground."""
    path = directory / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""  # else its worker could not enter our directory
    engine = upstream.removeprefix("http://")
    path.write_text(_CONFIGURATION.format(user=user, directory=directory, engine=engine, port=port))
    return [binary, "-c", str(path), "-p", str(directory), "-e", "stderr"]
