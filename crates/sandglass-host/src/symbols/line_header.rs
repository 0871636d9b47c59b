//! Checks headers of line programs before a parser allocates for them.

use gimli::{EndianSlice, Format, LittleEndian, Reader as _};

/// Longest header, in bytes. A parser's list of its files takes thirty times as much, and real
/// ones have some tens of kilobytes.
const HEADER_MAX_BYTES: usize = 128 << 10;

/// Whether the header at `offset` of `debug_line` is short, and each of its entries occupies at
/// least one byte. DWARF 5 lets entries have no bytes, so that a few of them could declare
/// billions. Returns the header's length, in bytes; `None` if it is refused.
pub(super) fn checked_len(debug_line: &[u8], offset: usize) -> Option<usize> {
    let mut rest = EndianSlice::new(debug_line.get(offset..)?, LittleEndian);
    let (unit_len, format) = rest.read_initial_length().ok()?;
    let mut rest = rest.split(unit_len).ok()?;
    let version = rest.read_u16().ok()?;
    if version >= 5 {
        // The sizes of an address and of a segment selector.
        rest.skip(2).ok()?;
    }
    let header_len = rest.read_length(format).ok()?;
    if header_len > HEADER_MAX_BYTES {
        return None;
    }
    if version >= 5 {
        let mut header = rest.split(header_len).ok()?;
        let fixed = 5 + usize::from(version >= 4);
        let opcode_base = *header.slice().get(fixed - 1)?;
        header.skip(fixed + usize::from(opcode_base.checked_sub(1)?)).ok()?;
        // The directories, then the files.
        skip_entries(&mut header, format)?;
        let _files = entry_forms(&mut header)?;
    }
    Some(header_len)
}

/// Skips a list of directories.
fn skip_entries(header: &mut EndianSlice<'_, LittleEndian>, format: Format) -> Option<()> {
    let forms = entry_forms(header)?;
    let count = header.read_uleb128().ok()?;
    for _ in 0..count {
        for form in &forms {
            skip_form(header, *form, format)?;
        }
    }
    Some(())
}

/// The forms of each entry. `None` if an entry could have no bytes.
fn entry_forms(header: &mut EndianSlice<'_, LittleEndian>) -> Option<Vec<gimli::DwForm>> {
    let count = header.read_u8().ok()?;
    let forms = (0..count).map(|_| {
        header.read_uleb128().ok()?;
        Some(gimli::DwForm(header.read_uleb128_u16().ok()?))
    });
    let forms: Vec<gimli::DwForm> = forms.collect::<Option<_>>()?;
    let has_bytes = forms.iter().any(|form| is_path(*form));
    has_bytes.then_some(forms)
}

/// Whether `form` is one that paths have. Each occupies at least one byte.
const fn is_path(form: gimli::DwForm) -> bool {
    matches!(
        form,
        gimli::DW_FORM_string
            | gimli::DW_FORM_line_strp
            | gimli::DW_FORM_strp
            | gimli::DW_FORM_strx
            | gimli::DW_FORM_strx1
            | gimli::DW_FORM_strx2
            | gimli::DW_FORM_strx3
            | gimli::DW_FORM_strx4
            | gimli::DW_FORM_udata
    )
}

fn skip_form(
    header: &mut EndianSlice<'_, LittleEndian>,
    form: gimli::DwForm,
    format: Format,
) -> Option<()> {
    let bytes = match form {
        gimli::DW_FORM_string => {
            header.read_null_terminated_slice().ok()?;
            0
        }
        gimli::DW_FORM_udata | gimli::DW_FORM_strx => {
            header.read_uleb128().ok()?;
            0
        }
        gimli::DW_FORM_line_strp | gimli::DW_FORM_strp => usize::from(format.word_size()),
        gimli::DW_FORM_data1 | gimli::DW_FORM_strx1 => 1,
        gimli::DW_FORM_data2 | gimli::DW_FORM_strx2 => 2,
        gimli::DW_FORM_strx3 => 3,
        gimli::DW_FORM_data4 | gimli::DW_FORM_strx4 => 4,
        gimli::DW_FORM_data8 => 8,
        gimli::DW_FORM_data16 => 16,
        gimli::DW_FORM_block => header.read_uleb128().ok().and_then(|n| n.try_into().ok())?,
        _ => return None,
    };
    header.skip(bytes).ok()
}
