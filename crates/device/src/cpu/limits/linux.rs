//! Linux reports memory and its limits in files. Readers take the root folder of the files as a parameter, so that tests can provide a fake
//! one.

use std::path::{Path, PathBuf};

use holdall_files::kib_field;

use super::{Bound, Room};

/// The machine, then what limits this process on it.
pub fn rooms() -> Option<Vec<Room>> {
    rooms_under(Path::new("/"))
}

fn rooms_under(root: &Path) -> Option<Vec<Room>> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let meminfo = read("proc/meminfo")?;
    let machine = Room {
        bound: Bound::Machine,
        total_bytes: kib_field(&meminfo, "MemTotal:")?,
        available_bytes: kib_field(&meminfo, "MemAvailable:")?,
    };
    let mut rooms = vec![machine];
    if let (Some(groups), Some(mounts)) = (read("proc/self/cgroup"), read("proc/self/mountinfo")) {
        rooms.extend(group_rooms(root, &groups, &mounts));
    }
    if let (Some(limits), Some(status)) = (read("proc/self/limits"), read("proc/self/status")) {
        rooms.extend(limit_rooms(&limits, &status));
    }
    Some(rooms)
}

/// Names of a control group's files in one version of control groups.
struct GroupFiles {
    /// File system type in `mountinfo`.
    file_system: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Field of `memory.stat`: file pages that were not used lately. The kernel frees them before it refuses memory.
    reclaimable: &'static str,
    /// Field of `memory.stat`: the smallest limit of the group and its ancestors, which may be invisible to the process.
    limit_in_stat: Option<&'static str>,
}

const VERSION_2: GroupFiles = GroupFiles {
    file_system: "cgroup2",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: "inactive_file",
    limit_in_stat: None,
};

const VERSION_1: GroupFiles = GroupFiles {
    file_system: "cgroup",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
    limit_in_stat: Some("hierarchical_memory_limit"),
};

/// In version 1, "no limit" is a number close to the maximum.
const NO_LIMIT: u64 = 1 << 60;

/// Limits of the control groups of this process, and of all their ancestors.
fn group_rooms(root: &Path, groups: &str, mounts: &str) -> Vec<Room> {
    let mut rooms = Vec::new();
    for line in groups.lines() {
        // The line is `0::/path` in version 2, `4:memory:/path` in version 1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let files = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => VERSION_1,
            _ => continue,
        };
        let mounted = mounts.lines().filter_map(|line| Mount::parse(line, &files));
        for mount in mounted {
            // Folders above the mount point are not control groups.
            let own = mount.folder_of(path);
            let folders = own.ancestors().take_while(|f| f.starts_with(&mount.point));
            rooms.extend(folders.filter_map(|folder| group_room(root, folder, &files)));
        }
    }
    rooms
}

/// Mount of a control group file system.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Path of the group at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Parses `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`; `None` for another version.
    fn parse(line: &str, files: &GroupFiles) -> Option<Mount> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        if system.next()? != files.file_system {
            return None;
        }
        let mut options = system.next_back()?.split(',');
        if files.limit_in_stat.is_some() && !options.any(|option| option == "memory") {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        Some(Mount {
            root: mount.next()?.into(),
            point: mount.next()?.into(),
        })
    }

    /// The folder of a group. In a container the group's path may be the path on the host, or lead above the mount: then the process's
    /// own group is the mount point.
    fn folder_of(&self, group: &str) -> PathBuf {
        let below = Path::new(group).strip_prefix(&self.root);
        let below = below.unwrap_or(Path::new(""));
        if below.components().any(|part| part.as_os_str() == "..") {
            self.point.clone()
        } else {
            self.point.join(below)
        }
    }
}

fn group_room(root: &Path, folder: &Path, files: &GroupFiles) -> Option<Room> {
    let folder = root.join(folder.strip_prefix("/").unwrap_or(folder));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = read("memory.stat").unwrap_or_default();
    let of_stat = |name: &str| {
        let mut fields = stat.lines().map(|line| line.split_once(' '));
        let found = fields.find_map(|field| field.filter(|(key, _)| *key == name));
        found?.1.trim().parse::<u64>().ok()
    };
    let limits = files.limits.iter().filter_map(|name| number(name));
    let limit = limits
        .chain(files.limit_in_stat.and_then(of_stat))
        .filter(|limit| *limit < NO_LIMIT)
        .min()?;
    let reclaimable = of_stat(files.reclaimable).unwrap_or(0);
    let used = number(files.used).unwrap_or(0).saturating_sub(reclaimable);
    Some(Room {
        bound: Bound::Container,
        total_bytes: limit,
        available_bytes: limit.saturating_sub(used),
    })
}

/// Limits set by `ulimit`, except the limit of resident memory: no current kernel enforces it.
fn limit_rooms(limits: &str, status: &str) -> Vec<Room> {
    let room = |bound, limit: &str, used: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit comes first; `unlimited` does not parse.
        let total_bytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        let used = kib_field(status, used).unwrap_or(0);
        Some(Room {
            bound,
            total_bytes,
            available_bytes: total_bytes.saturating_sub(used),
        })
    };
    let rooms = [
        room(Bound::AddressSpace, "Max address space", "VmSize:"),
        room(Bound::Data, "Max data size", "VmData:"),
    ];
    rooms.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::{host_memory, smallest_of};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A fake machine of 16 GiB, 12 of them available.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 12582912 kB\n";
        for (path, text) in files.iter().chain(&[("proc/meminfo", meminfo)]) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn found(files: &[(&str, &str)]) -> (Bound, u64, u64) {
        let root = machine(files);
        let memory = smallest_of(&rooms_under(root.path()).unwrap()).unwrap();
        assert_eq!(memory.machine_bytes, 16 << 30);
        assert_eq!(memory.machine_available_bytes, 12 << 30);
        let [total, available] = [memory.total_bytes, memory.available_bytes];
        (memory.bound, total / MIB, available / MIB)
    }

    const MOUNTED_2: &str =
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_machine_alone() {
        let all = (Bound::Machine, 16 << 10, 12 << 10);
        assert_eq!(found(&[]), all);
        assert_eq!(
            found(&[
                ("proc/self/cgroup", "0::/\n"),
                ("proc/self/mountinfo", MOUNTED_2),
                ("sys/fs/cgroup/memory.stat", "inactive_file 5\n"),
            ]),
            all
        );
        assert_eq!(rooms_under(Path::new("/no/such/folder")), None);
    }

    /// File pages that were not used lately count as available.
    #[test]
    fn a_group_of_version_2() {
        assert_eq!(
            found(&[
                ("proc/self/cgroup", "0::/box\n"),
                ("proc/self/mountinfo", MOUNTED_2),
                ("sys/fs/cgroup/box/memory.max", "314572800\n"),
                ("sys/fs/cgroup/box/memory.high", "max\n"),
                ("sys/fs/cgroup/box/memory.current", "104857600\n"),
                (
                    "sys/fs/cgroup/box/memory.stat",
                    "anon 1\nactive_file 3\ninactive_file 52428800\n"
                ),
            ]),
            (Bound::Container, 300, 250)
        );
    }

    #[test]
    fn the_softer_bound_counts_too() {
        let files = [
            ("proc/self/cgroup", "0::/box\n"),
            ("proc/self/mountinfo", MOUNTED_2),
            ("sys/fs/cgroup/box/memory.max", "314572800\n"),
            ("sys/fs/cgroup/box/memory.high", "209715200\n"),
        ];
        assert_eq!(found(&files), (Bound::Container, 200, 200));
    }

    /// The parent group has a lower limit and less memory left than the process's own group.
    #[test]
    fn groups_above_bound_those_below() {
        assert_eq!(
            found(&[
                ("proc/self/cgroup", "0::/pod/box\n"),
                ("proc/self/mountinfo", MOUNTED_2),
                ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/pod/memory.current", "1048576000\n"),
            ]),
            (Bound::Container, 1024, 24)
        );
    }

    /// In a container that shows the host's group paths, the mount contains the process's own group alone.
    #[test]
    fn a_group_of_version_1_mounted_at_its_own_root() {
        let mounts = "30 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                      34 30 0:31 / /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n\
                      35 30 0:32 /docker/7f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            found(&[
                (
                    "proc/self/cgroup",
                    "5:cpuset:/docker/7f\n4:memory:/docker/7f\n0::/elsewhere\n"
                ),
                ("proc/self/mountinfo", mounts),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n"
                ),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "73400320\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 7\nhierarchical_memory_limit 314572800\ntotal_inactive_file 20971520\n"
                ),
            ]),
            (Bound::Container, 300, 250)
        );
    }

    #[test]
    fn a_group_of_version_1_below_others() {
        let mounts = "35 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            found(&[
                ("proc/self/cgroup", "4:cpu,memory:/jobs/17\n"),
                ("proc/self/mountinfo", mounts),
                (
                    "sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes",
                    "9223372036854771712\n"
                ),
                (
                    "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes",
                    "419430400\n"
                ),
            ]),
            (Bound::Container, 400, 400)
        );
    }

    /// A path that leads above the mount, as in nested containers.
    #[test]
    fn a_group_out_of_sight_is_the_mount_itself() {
        for group in ["0::/../..\n", "0::/not/there\n"] {
            let files = [
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", MOUNTED_2),
                ("sys/fs/cgroup/memory.max", "104857600\n"),
            ];
            assert_eq!(found(&files), (Bound::Container, 100, 100), "{group}");
        }
    }

    #[test]
    fn limits_of_the_process() {
        let limits = |address_space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data}            unlimited            bytes     \n\
                 Max resident set          1048576              unlimited            bytes     \n\
                 Max address space         {address_space}            unlimited            bytes     \n"
            )
        };
        let of = |address_space, data| {
            found(&[
                ("proc/self/limits", &limits(address_space, data)),
                (
                    "proc/self/status",
                    "VmPeak: 9 kB\nVmSize: 102400 kB\nVmData: 51200 kB\n",
                ),
            ])
        };
        assert_eq!(
            of("unlimited", "unlimited"),
            (Bound::Machine, 16 << 10, 12 << 10)
        );
        assert_eq!(
            of("524288000", "unlimited"),
            (Bound::AddressSpace, 500, 400)
        );
        assert_eq!(of("524288000", "209715200"), (Bound::Data, 200, 150));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        let memory = host_memory().unwrap();
        assert!(memory.total_bytes <= memory.machine_bytes);
        assert!(memory.available_bytes <= memory.machine_available_bytes);
    }
}
