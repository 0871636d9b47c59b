# What the build scripts of the languages share; sourced by them.
# shellcheck shell=bash

languages=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fixtures=$(dirname "$languages")
wit=$(cd "$fixtures/../crates/sandglass-guest/wit" && pwd)

usage() {
    echo "usage: guest-fixtures/languages/$1/build [--check]" >&2
    exit 2
}

# keep MODE FRESH KEPT: puts the modules of FRESH, with their checksums and the
# toolchain's versions, which stand in FRESH/TOOLCHAIN, into KEPT; where MODE is
# --check, compares the two.
keep() {
    local mode=$1 fresh=$2 kept=$3
    (cd "$fresh" && LC_ALL=C sha256sum -- *.wasm >CHECKSUMS)
    if [[ $mode != --check ]]; then
        mkdir -p "$kept"
        rm -f "$kept"/*.wasm
        install -m 644 "$fresh"/* "$kept"
        return
    fi
    (cd "$kept" && sha256sum --check --quiet --strict CHECKSUMS)
    if ! cmp -s "$fresh/TOOLCHAIN" "$kept/TOOLCHAIN"; then
        echo "every guest builds, but with another toolchain than the kept ones, so checksums say nothing:"
        diff "$kept/TOOLCHAIN" "$fresh/TOOLCHAIN" || true
    elif diff "$kept/CHECKSUMS" "$fresh/CHECKSUMS"; then
        echo "the kept guests are what the sources give"
    else
        echo "the kept guests are not what the sources give; run guest-fixtures/languages/build" >&2
        exit 1
    fi
}

# Fails where a template's package.json has other versions than the one by which the
# toolchain is installed, so that what CI builds is what a new project gets.
same_versions() {
    node --input-type=module - "$languages/$1" <<'END'
import { readFileSync } from 'node:fs';
const folder = process.argv[2];
const [ours, theirs] = ['package.json', 'template/package.json']
  .map((name) => JSON.parse(readFileSync(`${folder}/${name}`, 'utf8')).dependencies);
for (const [name, version] of Object.entries(theirs)) {
  if (ours[name] !== version) throw new Error(`the template has ${name} ${version}, and not ${ours[name]}`);
}
END
}
