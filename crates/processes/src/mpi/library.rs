//! Finds and opens an MPI library.

use libloading::Library;

use super::functions::{Functions, library_version};
use super::rounds::Mpi;

/// The two binary interfaces of MPI libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    OpenMpi,
    Mpich,
}

impl Family {
    /// File names for the dynamic loader. Debian's MPICH has a file name of its own.
    fn file_names(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40"],
            Family::Mpich => &[
                "libmpi.so.12",
                "libmpich.so.12",
                "libmpi_cray.so.12",
                "libmpi_gnu.so.12",
            ],
        }
    }

    fn of_version(version: &str) -> Option<Family> {
        if version.contains("Open MPI") {
            return Some(Family::OpenMpi);
        }
        let descendants = ["MPICH", "Intel(R) MPI", "MVAPICH"];
        let is_mpich = descendants.iter().any(|name| version.contains(name));
        is_mpich.then_some(Family::Mpich)
    }
}

/// An MPI library that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMpi {
    /// File name known to the dynamic loader, or the given path.
    pub name: String,
    /// First line of the library's own version text.
    pub version: String,
}

/// Error: no usable MPI library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MPI was not found as {}\nhint: {}", .looked.join(", "), .hint)]
pub struct MissingMpi {
    /// File names that were tried, with the loader's message where a file exists.
    pub looked: Vec<String>,
    /// How to install MPI.
    pub hint: String,
}

const INSTALL: &str = "`apt install openmpi-bin`, `apt install mpich`, or `module load openmpi` on a cluster; HOLDALL_MPI \
                       names a library elsewhere, HOLDALL_MPI=none goes without";

/// Every MPI that the loader finds, for `doctor`. MPI is not initialised.
pub fn find() -> Result<Vec<FoundMpi>, MissingMpi> {
    let mut found: Vec<FoundMpi> = Vec::new();
    let mut looked = Vec::new();
    for family in [Family::OpenMpi, Family::Mpich] {
        match open_one(family, SymbolScope::Hidden) {
            Ok(opened) => {
                if !found.iter().any(|other| other.version == opened.version) {
                    found.push(FoundMpi {
                        name: opened.name,
                        version: opened.version,
                    });
                }
            }
            Err(tried) => looked.extend(tried),
        }
    }
    if found.is_empty() {
        looked.dedup();
        return Err(missing(looked));
    }
    Ok(found)
}

fn missing(looked: Vec<String>) -> MissingMpi {
    MissingMpi {
        looked,
        hint: INSTALL.to_owned(),
    }
}

struct OpenedLibrary {
    library: &'static Library,
    family: Family,
    name: String,
    version: String,
}

/// Opens the MPI of a family, or the library that HOLDALL_MPI names.
pub(crate) fn open(family: Family) -> Result<Mpi, MissingMpi> {
    let opened = open_one(family, SymbolScope::Visible).map_err(missing)?;
    let name = opened.version.clone();
    let bound = match opened.family {
        Family::OpenMpi => Functions::load(opened.library).map(|bound| Mpi::open_mpi(bound, name)),
        Family::Mpich => Functions::load(opened.library).map(|bound| Mpi::mpich(bound, name)),
    };
    bound.map_err(|error| missing(vec![format!("{} ({error})", opened.name)]))
}

fn open_one(family: Family, names: SymbolScope) -> Result<OpenedLibrary, Vec<String>> {
    let given = crate::launch::variable("HOLDALL_MPI");
    let candidates: Vec<String> = match &given {
        Some(path) => vec![path.clone()],
        None => family
            .file_names()
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    };
    let mut looked = Vec::new();
    for name in candidates {
        match try_open(&name, names) {
            Ok(opened) if given.is_some() || opened.family == family => return Ok(opened),
            Ok(opened) => looked.push(format!("{name} ({})", opened.version)),
            Err(reason) if given.is_some() => looked.push(format!("{name} ({reason})")),
            Err(_) => looked.push(name),
        }
    }
    Err(looked)
}

fn try_open(name: &str, names: SymbolScope) -> Result<OpenedLibrary, String> {
    let library = load(name, names).map_err(|error| error.to_string())?;
    // MPI's threads and handlers outlive any handle on the library: it stays open for the life of the process.
    let library: &'static Library = Box::leak(Box::new(library));
    let version = library_version(library)?;
    let family = Family::of_version(&version)
        .ok_or_else(|| format!("expected Open MPI or MPICH, found {version}"))?;
    let line = version.lines().next().unwrap_or_default();
    // Open MPI's version text continues with build details.
    let line = line.split(", package:").next().unwrap_or(line);
    let words: Vec<&str> = line.split_whitespace().collect();
    let version = words
        .join(" ")
        .replace("MPICH Version:", "MPICH")
        .replace(" v", " ");
    Ok(OpenedLibrary {
        library,
        family,
        name: name.to_owned(),
        version,
    })
}

/// Whether libraries opened later see this library's symbols.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SymbolScope {
    /// Open MPI's plug-ins need its symbols.
    Visible,
    /// Two MPIs can be inspected in one process.
    Hidden,
}

#[cfg(unix)]
fn load(name: &str, names: SymbolScope) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
    let scope = match names {
        SymbolScope::Visible => RTLD_GLOBAL,
        SymbolScope::Hidden => RTLD_LOCAL,
    };
    // SAFETY: MPI's initialisers are run by every program that is linked to it.
    unsafe { Library::open(Some(name), RTLD_NOW | scope) }.map(Into::into)
}

#[cfg(not(unix))]
fn load(name: &str, _: SymbolScope) -> Result<Library, libloading::Error> {
    // SAFETY: MPI's initialisers are run by every program that is linked to it.
    unsafe { Library::new(name) }
}
