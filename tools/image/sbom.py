"""The bill of materials of the image, as SPDX 2.3 JSON.

Every package of Debian and of Python is listed with its version and its package URL, which is what vulnerability scanners
look up. Nothing in it depends on the time or the machine of the build.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from oci import Description
from rootfs import SUITE, Layers, Package


def spdx(description: Description, layers: Layers) -> dict[str, Any]:
    """Return the document."""
    packages = [
        entry(package) for package in sorted(layers.contents, key=lambda found: (found.kind, found.name))
    ]
    seed = json.dumps([description.reference, description.revision, packages], sort_keys=True)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": description.reference,
        "documentNamespace": f"https://dray.dev/spdx/dray-{hashlib.sha256(seed.encode()).hexdigest()}",
        "creationInfo": {
            "created": description.created_text,
            "creators": [f"Tool: dray-image-{description.version}"],
        },
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages
        ],
    }


def entry(package: Package) -> dict[str, Any]:
    """Return the entry of one package."""
    return {
        "SPDXID": f"SPDXRef-{package.kind}-{package.name.replace('+', 'plus').replace('_', '-')}",
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": package.licence or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": package_url(package),
            }
        ],
    }


def package_url(package: Package) -> str:
    """Return the package URL, as the purl specification writes it."""
    version = package.version.replace(":", "%3A").replace("+", "%2B").replace("~", "~")
    name = package.name.replace("+", "%2B")
    if package.kind == "deb":
        return f"pkg:deb/debian/{name}@{version}?arch={package.architecture}&distro={SUITE}"
    return f"pkg:pypi/{name}@{version}"


def store(document: dict[str, Any], path: Path) -> None:
    """Write the document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
