//! Writes files of a drawn set without overwriting files of the user.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a file of a drawn set. Returns `false`, without writing, if the set is not known to be the caller's own and a different file has
/// the name. An interrupted drawing leaves equal files, or empty ones after a power loss; both may be written again.
pub(crate) fn write_drawn(path: &Path, bytes: &[u8], is_own_set: bool) -> io::Result<bool> {
    if !is_own_set {
        match fs::read(path) {
            Ok(present) if present == bytes => return Ok(true),
            Ok(present) if !present.is_empty() => return Ok(false),
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
    }
    // A temporary sibling is renamed into place. No fsync per file, which would take longer than drawing.
    let sibling = holdall_files::partial(path);
    fs::write(&sibling, bytes)?;
    holdall_files::rename(&sibling, path)?;
    Ok(true)
}
