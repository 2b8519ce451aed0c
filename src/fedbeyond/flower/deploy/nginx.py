"""A reverse proxy before a federation's server: nginx that lets sites' messages through, and nothing else.

Flower's server answers sites (`/v1/fleet/`) and whoever starts runs (`/v1/control/`) on one port, and asks only sites
who they are; so that port stays on the server's machine, and this is what the world reaches.
"""

from ipaddress import ip_address

from . import certificates


def nginx(address: str, bind: str) -> str:
    """The file for `nginx -p FOLDER/server -c nginx.conf`: all its paths are seen from there, any user can run it."""
    return TEMPLATE.format(
        listen=listening(address),
        bind=bind,
        certificate=certificates.CERTIFICATE,
        key=certificates.SERVER_KEY,
        authority=certificates.CA,
    )


def listening(address: str) -> str:
    """Where the proxy listens: at a loopback address alone if sites are told one, else wherever the port is reached."""
    host, _, port = address.rpartition(":")
    try:
        return address if ip_address(host).is_loopback else port
    except ValueError:
        return port


# nginx compares names of a certificate, not addresses: "localhost" is among the server's. Bodies are models of any
# size: they pass through without being kept on the way. What is passed on is the path that was looked at, however it
# was spelled.
TEMPLATE = """worker_processes 2;
pid nginx.pid;
error_log nginx-error.log;

events {{ worker_connections 512; }}

http {{
    access_log nginx-access.log;
    client_body_temp_path nginx-temp;
    proxy_temp_path nginx-temp;
    fastcgi_temp_path nginx-temp;
    uwsgi_temp_path nginx-temp;
    scgi_temp_path nginx-temp;

    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        server_tokens off;

        client_max_body_size 0;
        client_body_timeout 300s;
        send_timeout 300s;

        location /v1/fleet/ {{
            proxy_pass https://{bind}/v1/fleet/;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_send_timeout 300s;
            proxy_ssl_trusted_certificate {authority};
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}

        location / {{ return 404; }}
    }}
}}
"""
