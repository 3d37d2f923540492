import shutil

from tests.pages import made_up

made_up.pictures("lungs", 200)
shutil.copytree("lungs/ill", "new")
console("dpilot ledger create lungs/ --total 2")
