"""Configurations of gateways that ask over HTTP, from the examples of pages in docs/. Each returns a command."""

import json
import re
import textwrap

from processes import LOOPBACK, ROOT


def examples(page, language, section=None):
    """The examples of a page of docs/ in this language, or of one of its sections."""
    text = (ROOT / "docs" / page).read_text()
    if section:
        text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def replaced(text, *pairs):
    """The text with other addresses. Each must be there."""
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    return text


def nginx(folder, port, tollgate, upstream, server):
    """`server` is what a server has beside the port."""
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {folder / name};\n" for name in temporary)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {folder / 'pid'};\nerror_log stderr;\nevents {{}}\nhttp {{\n"
        f"    access_log off;\n{paths}"
        f"    upstream tollgate {{ server {tollgate}; }}\n    upstream application {{ server {upstream}; }}\n"
        f"    server {{\n        listen {LOOPBACK}:{port};\n{textwrap.indent(server, ' ' * 8)}    }}\n}}\n"
    )
    return "nginx", "-c", str(config), "-p", str(folder), "-e", "stderr"


def haproxy(folder, port, tollgate, upstream, example):
    example = replaced(
        example,
        ("/etc/haproxy/tollgate.lua", str(ROOT / "deploy" / "haproxy" / "tollgate.lua")),
        ("bind :8080", f"bind {LOOPBACK}:{port}"),
        ("tollgate:8080", tollgate),
    )
    config = folder / "haproxy.cfg"
    config.write_text(
        "defaults\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n"
        f"{example}\nbackend application\n    mode http\n    server upstream {upstream}\n"
    )
    return "haproxy", "-db", "-f", str(config)


def caddy(folder, port, tollgate, upstream, example):
    example = textwrap.indent(replaced(example, ("tollgate:8080", tollgate)), "    ")
    config = folder / "Caddyfile"
    config.write_text(
        "{\n    admin off\n    auto_https off\n}\n"
        f"http://:{port} {{\n    bind {LOOPBACK}\n{example}    reverse_proxy {upstream}\n}}\n"
    )
    return "caddy", "run", "--config", str(config)


def traefik(folder, port, upstream, entry_point, middleware):
    """`entry_point` has its fields beside the address. Requests to /unlimited pass by the middleware."""
    routes = folder / "routes.yaml"
    server = {"loadBalancer": {"servers": [{"url": f"http://{upstream}"}]}}
    limited = {"rule": "PathPrefix(`/`)", "service": "application", "middlewares": ["tollgate"]}
    routers = {"limited": limited, "unlimited": {"rule": "Path(`/unlimited`)", "service": "application"}}
    http = {"routers": routers, "services": {"application": server}, "middlewares": {"tollgate": middleware}}
    # JSON is YAML too.
    routes.write_text(json.dumps({"http": http}))
    config = folder / "traefik.yaml"
    static = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "entryPoints": {"web": entry_point | {"address": f"{LOOPBACK}:{port}"}},
        "providers": {"file": {"filename": str(routes)}},
    }
    config.write_text(json.dumps(static))
    return "traefik", f"--configFile={config}"
