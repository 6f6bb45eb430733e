"""Models of the Hugging Face hub, and single files of other servers: by name, pulled once."""

from pyflow.hub.choose import Choice
from pyflow.hub.names import PREFIX, FileUrl, HubName, is_repo, parse, parse_repo
from pyflow.hub.pull import Plan, Pulled, cached, fetch, plan, without_network
from pyflow.hub.quants import Quant
from pyflow.hub.session import UnreachableError
from pyflow.hub.urls import PulledUrl, cached_url, fetch_url, folder_of, pulled_urls, remove_url

__all__ = [
    "PREFIX",
    "Choice",
    "FileUrl",
    "HubName",
    "Plan",
    "Pulled",
    "PulledUrl",
    "Quant",
    "UnreachableError",
    "cached",
    "cached_url",
    "fetch",
    "fetch_url",
    "folder_of",
    "is_repo",
    "parse",
    "parse_repo",
    "plan",
    "pulled_urls",
    "remove_url",
    "without_network",
]
