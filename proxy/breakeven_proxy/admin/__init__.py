"""The admin port: metrics page, health, status; aiohttp, apart from the traffic."""
