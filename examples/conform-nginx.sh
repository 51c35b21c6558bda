#!/bin/sh
# nginx before one engine, for `longwire conform --start 'sh examples/conform-nginx.sh {port} {upstream}'`.
# What is not nginx's default: HTTP/1.1 to the engine, no buffering, bodies up to 16 MB.
set -eu
PATH="$PATH:/usr/sbin:/usr/local/sbin"
folder=$(mktemp -d)
chmod 755 "$folder" # its workers are nobody where it was started by root
cat > "$folder/nginx.conf" <<CONF
daemon off;
worker_processes 2;
pid $folder/nginx.pid;
error_log stderr error;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $folder/body;
    proxy_temp_path $folder/proxy;
    fastcgi_temp_path $folder/fastcgi;
    uwsgi_temp_path $folder/uwsgi;
    scgi_temp_path $folder/scgi;
    client_max_body_size 16m;
    upstream engine { server ${2#http://}; keepalive 64; }
    server {
        listen 127.0.0.1:$1;
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }
    }
}
CONF
exec nginx -e stderr -c "$folder/nginx.conf"
