#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Makes Debian packages of the programs in target/release, in target/deb/, and
# checks them with lintian. A new run replaces the packages of the last one.
#
# debhelper works in a copy of packaging/debian, so that it writes nothing into
# the source tree. DEBFULLNAME and DEBEMAIL say who makes the packages; without
# them it is the author of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
folder=target/deb

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# A tree beyond a release is newer than it.
if [ -z "$(git tag --points-at HEAD "v$version" 2>/dev/null)" ]; then
	commit=$(git log -1 --date=format:%Y%m%d%H%M --format=%cd.%h 2>/dev/null) && version+="+git$commit"
fi
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
maintainer=$(git log -1 --format='%an <%ae>' 2>/dev/null || true)
[ -z "${DEBEMAIL:-}" ] || maintainer="${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>"

rm -rf "$folder"
mkdir -p "$folder/source"
cp -r packaging/debian "$folder/source/"
cd "$folder/source"
sed -i "s/@MAINTAINER@/$maintainer/" debian/control
cat >debian/changelog <<-EOF
	magpie ($version-1) unstable; urgency=medium

	  * See the changelog of the project.

	 -- $maintainer  $date
EOF
if ! TREE=$tree debian/rules binary >../build.log 2>&1; then
	tail -20 ../build.log >&2
	echo "deb.sh: debhelper failed; all that it printed is in $folder/build.log" >&2
	exit 1
fi
cd ..
lintian --allow-root --fail-on error,warning --tag-display-limit 0 ./*.deb
ls "$tree/$folder"/*.deb
