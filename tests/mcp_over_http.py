"""The tools of `softkv mcp` over HTTP, for the suite that MCP has: `python -m tests.mcp_over_http`.

Beside it, in an empty folder, with npm and Node 22:

    npm install @modelcontextprotocol/conformance@0.1.16
    npx conformance server --url http://127.0.0.1:8123/mcp

Does not judge: most of its scenarios ask for tools, resources and prompts of certain names (docs/doors.md).
"""

import tempfile
from pathlib import Path

import uvicorn

from softkv.doors.mcp.reaching import Reaching
from softkv.doors.mcp.tools import made

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        server = made(Reaching(str(Path(folder) / "m.softkv"), ["false"]))
        uvicorn.run(server.streamable_http_app(), port=8123, log_level="warning")
