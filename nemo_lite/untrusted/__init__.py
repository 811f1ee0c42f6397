"""One policy for every file that this program did not just write. What a file means is known to its reader only.

A file is opened without waiting, is a regular file, and is not larger than its kind may be. Sizes, depth and counts are
checked before anything is built from them, and what was read is what was promised.
"""

from nemo_lite.untrusted.json_values import Json as Json
from nemo_lite.untrusted.json_values import JsonLimits as JsonLimits
from nemo_lite.untrusted.json_values import may_be_deeper as may_be_deeper
from nemo_lite.untrusted.json_values import parse_json as parse_json
from nemo_lite.untrusted.json_values import problem_of_json as problem_of_json
from nemo_lite.untrusted.json_values import read_json as read_json
from nemo_lite.untrusted.opening import FileKind as FileKind
from nemo_lite.untrusted.opening import decode_text as decode_text
from nemo_lite.untrusted.opening import kind_unless_file as kind_unless_file
from nemo_lite.untrusted.opening import numbered_lines as numbered_lines
from nemo_lite.untrusted.opening import open_descriptor as open_descriptor
from nemo_lite.untrusted.opening import open_file as open_file
from nemo_lite.untrusted.opening import read_bytes as read_bytes
from nemo_lite.untrusted.opening import read_text as read_text
from nemo_lite.untrusted.tar_and_zip import Tar as Tar
from nemo_lite.untrusted.tar_and_zip import TarGuard as TarGuard
from nemo_lite.untrusted.tar_and_zip import TarLimits as TarLimits
from nemo_lite.untrusted.tar_and_zip import check_zip as check_zip
from nemo_lite.untrusted.tar_and_zip import open_tar as open_tar
from nemo_lite.untrusted.tar_and_zip import problem_of_name as problem_of_name
from nemo_lite.untrusted.tensor_files import check_tensor_file as check_tensor_file
